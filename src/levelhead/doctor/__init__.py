"""The doctor: reads the log of any trainer, follows it, and says what is wrong, as text or a page."""
