"""Datasets: where they come from, how they are read and cached, and how they are split over clients."""
