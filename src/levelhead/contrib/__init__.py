"""Tasks that ship as examples of what a package of your own can add: each uses only what the core offers to all."""
