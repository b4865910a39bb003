"""The adapter for Google's Agent Development Kit. Importing it does not import the kit; making one does."""

from graphweft_runtimes.google_adk.adapter import GoogleADKAdapter

__all__ = ("GoogleADKAdapter",)
