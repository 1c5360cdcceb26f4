package resources_test

import (
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/clew-dev/clew/api/v1alpha1"
	"github.com/clew-dev/clew/internal/resources"
)

func TestAPodGetsTheToolsOfTheSpecAndTheDefaultWithoutAny(t *testing.T) {
	for name, tt := range map[string]struct{ given, want []v1alpha1.AgentTool }{
		"left out": {nil, []v1alpha1.AgentTool{"checkpoint", "checkpoints", "history_search", "diff"}},
		"none":     {[]v1alpha1.AgentTool{}, nil},
		"one":      {[]v1alpha1.AgentTool{"diff"}, []v1alpha1.AgentTool{"diff"}},
	} {
		t.Run(name, func(t *testing.T) {
			with := task(func(t *v1alpha1.Task) { t.Spec.Tools = tt.given })
			got := config(t, newPod(t, resources.PodRequest{Task: with})).Tools
			if diff := cmp.Diff(tt.want, got); diff != "" {
				t.Errorf("tools (-want +got):\n%s", diff)
			}
		})
	}
}
