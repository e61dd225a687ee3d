"""What a person looks at: progress, tables and curves."""
