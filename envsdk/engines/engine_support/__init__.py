"""What engines in front of a server share: waiting requests, results, failures and retries."""
