package apirules

import (
	"github.com/golangci/plugin-module-register/register"
	"golang.org/x/tools/go/analysis"
)

// Name of the linter in .golangci.yml.
const Name = "apirules"

// NewPlugin makes the linter for golangci-lint. It takes no settings.
func NewPlugin(any) (register.LinterPlugin, error) { return plugin{}, nil }

type plugin struct{}

func (plugin) BuildAnalyzers() ([]*analysis.Analyzer, error) {
	return []*analysis.Analyzer{Analyzer()}, nil
}

func (plugin) GetLoadMode() string { return register.LoadModeTypesInfo }
