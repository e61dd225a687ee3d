"""Every table and figure of the paper by name: recipes, the queue that runs their cells, and what comes of it."""
