"""The resumable queue of runs that `fedptr reproduce`, `fedptr audit` and `fedptr sweep` share."""
