"""The resumable queue of runs that `fedptr reproduce` and `fedptr audit` share."""
