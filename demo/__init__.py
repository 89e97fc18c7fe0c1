"""The five reports that Outlive answers, acted out in the terminal against a real server process."""
