"""Reading the indexed datasets: rows by number, in an order that depends on nothing but the seed and a position."""
