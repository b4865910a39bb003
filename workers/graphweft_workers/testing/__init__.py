"""What others test with: ``graphweft.testing`` for rules."""
