"""What is kept of answers: the prediction log, and drift."""
