package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestPrices(t *testing.T) {
	for name, c := range map[string]struct{ content, sentence string }{
		"good":          {`{"our-model": {"input": 3000000, "cachedInput": 300000, "output": 15000000}}`, ""},
		"none":          {`{}`, ""},
		"no JSON":       {`our-model: 3`, "does not contain prices"},
		"misspelt":      {`{"our-model": {"inptu": 3}}`, "does not contain prices"},
		"no whole":      {`{"our-model": {"input": 0.5}}`, "does not contain prices"},
		"negative":      {`{"our-model": {"input": -1}}`, `the price of "our-model" must be`},
		"of no model":   {`{"": {"input": 1}}`, `the price of "" must be`},
		"too many":      {"{" + strings.TrimSuffix(many(), ",") + "}", "at most 500"},
		"not the whole": {`{"our-model": {"input": 3}`, "does not contain prices"},
	} {
		t.Run(name, func(t *testing.T) {
			file := filepath.Join(t.TempDir(), "prices.json")
			if err := os.WriteFile(file, []byte(c.content), 0o600); err != nil {
				t.Fatal(err)
			}
			prices, err := readPrices(file)
			switch {
			case c.sentence == "" && err != nil:
				t.Error(err)
			case c.sentence != "" && (err == nil || !strings.Contains(err.Error(), c.sentence)):
				t.Errorf("the error is %v, want %q", err, c.sentence)
			case name == "good" && prices["our-model"].CachedInput != 300000:
				t.Errorf("the prices are %+v", prices)
			}
		})
	}
	o := defaultOptions()
	o.pricesFile = filepath.Join(t.TempDir(), "nowhere")
	if _, err := o.podOptions(); err == nil || !strings.Contains(err.Error(), "--prices-file") {
		t.Errorf("the error for a missing file is %v", err)
	}
}

func many() string {
	var b strings.Builder
	for i := range 501 {
		b.WriteString(`"m` + strings.Repeat("x", i) + `":{},`)
	}
	return b.String()
}
