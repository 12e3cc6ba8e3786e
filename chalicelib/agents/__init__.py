"""Who answers: the agents that tenants define."""
