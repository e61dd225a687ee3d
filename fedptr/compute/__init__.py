"""How a task is computed fast, and how much memory it needs. None of this changes results, up to rounding."""
