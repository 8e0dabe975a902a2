"""What a person should know of the data though no rule of the contract is broken."""
