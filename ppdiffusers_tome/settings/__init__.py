"""What a user may choose, checked before anything is touched. Knows no Paddle."""
