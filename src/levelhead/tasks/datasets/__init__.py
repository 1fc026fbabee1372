"""Readers of public data sets, one file each: format, checker, licence and origin; ``registry`` lists them."""
