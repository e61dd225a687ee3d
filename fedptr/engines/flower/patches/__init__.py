"""Every place where fedptr replaces, or relies on, something inside Flower: one file each.

Flower has no settings for what these files change. Each names the code of Flower that it counts on (`FLOWER`), and
tests/engines/test_patches.py compares that with the Flower that is installed: when Flower changes it, a test says what
changed and which file to look at. Nothing outside this folder imports from Flower what is not public.
"""
