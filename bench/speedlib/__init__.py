"""Parts of ``bench/speed.py``: what is measured, and one worker for each side."""
