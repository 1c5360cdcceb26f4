package apirules_test

import (
	"testing"

	"golang.org/x/tools/go/analysis/analysistest"

	"github.com/clew-dev/clew/hack/tools/lint/apirules"
)

func TestAnalyzer(t *testing.T) {
	analysistest.Run(t, analysistest.TestData(), apirules.Analyzer(), "api", "other")
}
