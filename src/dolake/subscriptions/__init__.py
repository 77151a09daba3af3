"""Changes told to those who want to know: from any moment of the past into the present, without a gap or a repeat."""
