"""The broker's HTTP interface."""
