"""How a task is computed fast, and in how much memory. The results do not depend on any of it, up to rounding."""
