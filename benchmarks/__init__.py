"""What speed is judged with: a load that costs little, the least broker that could be, and raw figures of the machine."""
