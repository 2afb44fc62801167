"""What crosses a boundary: the words that every other part of chatmill is written in."""
