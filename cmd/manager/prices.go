package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"os"

	"github.com/clew-dev/clew/internal/daemonapi"
)

// maxPrices bounds the prices in the configuration of every pod.
const maxPrices = 500

// readPrices reads the prices of models, keyed by a prefix of the model's name:
//
//	{"our-model": {"input": 3000000, "cachedInput": 300000, "output": 15000000}}
func readPrices(file string) (map[string]daemonapi.Price, error) {
	content, err := os.ReadFile(file)
	if err != nil {
		return nil, fmt.Errorf("--prices-file: %w", err)
	}
	decoder := json.NewDecoder(bytes.NewReader(content))
	decoder.DisallowUnknownFields()
	prices := map[string]daemonapi.Price{}
	if err := decoder.Decode(&prices); err != nil {
		return nil, fmt.Errorf("--prices-file %s does not contain prices, such as {\"our-model\": {\"input\": 3000000, \"output\": 15000000}}: %w", file, err)
	}
	if len(prices) > maxPrices {
		return nil, fmt.Errorf("--prices-file %s names %d models, but at most %d are allowed", file, len(prices), maxPrices)
	}
	var problems []error
	for model, p := range prices {
		if model == "" || p.Input < 0 || p.CachedInput < 0 || p.Output < 0 {
			problems = append(problems, fmt.Errorf("--prices-file %s: the price of %q must be of a named model and not negative", file, model))
		}
	}
	return prices, errors.Join(problems...)
}
