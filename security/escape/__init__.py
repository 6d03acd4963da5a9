"""The adversary: attacks the sandboxes that the given `box` command makes, and reports what held.

It runs `box` as a user does and looks at the host with code of its own: standard library, its own C
programs, its own reading of /proc and the control groups. It imports nothing of the product, so
that one mistake cannot blind both judge and judged.
"""
