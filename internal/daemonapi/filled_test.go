package daemonapi_test

import (
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/clew-dev/clew/internal/daemonapi"
	"github.com/clew-dev/clew/internal/testing/filled"
)

func TestAConfigArrivesWhole(t *testing.T) {
	var config daemonapi.Config
	filled.In(&config)
	encoded, err := config.Encode()
	if err != nil {
		t.Fatal(err)
	}
	got, err := daemonapi.DecodeConfig(encoded)
	if err != nil {
		t.Fatal(err)
	}
	config.PodUID = "" // of the pod's own environment
	if d := cmp.Diff(config, got); d != "" {
		t.Error(d)
	}
}
