"""The decoding loop, the draws it makes and the record it leaves."""
