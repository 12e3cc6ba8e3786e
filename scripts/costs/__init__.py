"""What the stack costs a month, from list prices and what a turn was measured to take."""
