"""The models a plan can name, and the check of a model somebody brings."""
