"""What the pages measure: cases to time, one file for each experiment."""
