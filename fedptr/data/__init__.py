"""Where datasets come from, how they are split over clients, and split files."""
