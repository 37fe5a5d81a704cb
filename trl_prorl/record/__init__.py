"""The record of a run: its rows, events and files, written, read and shown."""
