"""What follows in a run when a device has too little memory."""
