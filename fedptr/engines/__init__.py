"""Other ways than the in-process loop to let a cohort visit. Each is an extra, imported only when used."""
