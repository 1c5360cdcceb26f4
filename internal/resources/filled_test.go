package resources_test

import (
	"testing"

	"github.com/clew-dev/clew/api/v1alpha1"
	"github.com/clew-dev/clew/internal/resources"
	"github.com/clew-dev/clew/internal/testing/filled"
)

// TestAPodIsToldAllThatItHasToKnow: a field that is new in its configuration is filled
// where the configuration is made.
func TestAPodGetsEveryFieldOfItsConfiguration(t *testing.T) {
	var request resources.PodRequest
	var options resources.Options
	filled.In(&request)
	filled.In(&options)
	request.Task.Spec.Conversation.Context.Summary = v1alpha1.ConversationInclude
	request.Task.Spec.CheckpointPolicy.BeforeRun = v1alpha1.BeforeRunAlways
	request.Task.Spec.Role = v1alpha1.RoleSupervisor
	// The pod gets its own UID from the kubelet.
	if empty := filled.Empty(resources.Config(request, options), "PodUID"); empty != nil {
		t.Errorf("these fields are empty: %v", empty)
	}
}
