package gitstore

import (
	"strings"
	"testing"

	"github.com/spf13/pflag"
)

func TestOptionsAreChecked(t *testing.T) {
	for want, args := range map[string][]string{
		"":                                  {},
		"--tls-cert-file":                   {"--tls-cert-file="},
		"must differ":                       {"--metrics-bind-address=:1", "--health-probe-bind-address=:1"},
		"--audience must name at least one": {"--audience="},
		"--git-memory-bytes must be 0":      {"--git-memory-bytes=1"},
		"--namespace-quota-bytes":           {"--namespace-quota-bytes=-1"},
		"--max-push-bytes":                  {"--max-push-bytes=-1"},
		"--min-free-bytes":                  {"--min-free-bytes=-1"},
		"--max-concurrent-pushes":           {"--max-concurrent-pushes=0"},
		"--max-concurrent-fetches":          {"--max-concurrent-fetches=-2"},
		"--requests-per-second":             {"--requests-per-second=-1"},
		"--max-packs":                       {"--max-packs=0"},
		"--client-patience":                 {"--client-patience=0s"},
		"--request-timeout":                 {"--request-timeout=-1s"},
		"--maintenance-interval":            {"--maintenance-interval=0s"},
	} {
		var o Options
		flags := pflag.NewFlagSet("gitstore", pflag.ContinueOnError)
		o.AddFlags(flags)
		if err := flags.Parse(append([]string{"--tls-cert-file=c", "--tls-private-key-file=k"}, args...)); err != nil {
			t.Fatal(err)
		}
		err := o.validate()
		if want == "" {
			if err != nil {
				t.Errorf("%q: unexpected error %v", args, err)
			}
			continue
		}
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: got error %v, want one that contains %q", args, err, want)
		}
	}
	if err := Run(t.Context(), Options{LogLevel: "info"}, nil); err == nil || !strings.Contains(err.Error(), "--tls-cert-file") {
		t.Errorf("Run without options returned %v, want an error about --tls-cert-file", err)
	}
}
