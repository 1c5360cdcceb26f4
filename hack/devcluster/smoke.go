package main

import "context"

func (c *cluster) smoke(ctx context.Context) error { return nil }
