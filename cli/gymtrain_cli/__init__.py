"""`kubectl gymtrain`: watch a run and draw its reward curve."""
