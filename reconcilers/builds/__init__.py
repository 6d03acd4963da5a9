"""Build steps: run one by one in throwaway machines, kept as layers of a disk, made an image."""
