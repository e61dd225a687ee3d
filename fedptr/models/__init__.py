"""The models a plan can name, and the check of a user's own model."""
