"""Every place where fedptr replaces, or relies on, something inside Flower: one file each."""
