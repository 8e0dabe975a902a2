"""What a segment meets from elsewhere: wishes by the store and by Prefect, processes that watched its ranks before."""
