"""Root images: fetched or made, merged in memory, written once as squashfs, shared by all."""
