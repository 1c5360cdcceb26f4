package controller_test

import (
	"context"
	"fmt"
	"strings"

	. "github.com/onsi/ginkgo/v2"
	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/yaml"

	"github.com/clew-dev/clew/api/v1alpha1"
)

// dump reports the objects of the world's namespace when a spec has failed.
func (w *world) dump() {
	if !CurrentSpecReport().Failed() {
		return
	}
	ctx := context.WithoutCancel(w.ctx)
	for _, list := range []client.ObjectList{
		&v1alpha1.TaskList{}, &v1alpha1.CheckpointList{}, &v1alpha1.ForkList{}, &v1alpha1.ConversationSnapshotList{}, &corev1.PodList{}, &corev1.EventList{},
	} {
		kind := strings.TrimSuffix(strings.TrimPrefix(fmt.Sprintf("%T", list), "*"), "List")
		if err := w.client.List(ctx, list, client.InNamespace(w.namespace)); err != nil {
			AddReportEntry(kind, err.Error())
			continue
		}
		text, err := yaml.Marshal(list)
		if err != nil {
			AddReportEntry(kind, err.Error())
			continue
		}
		AddReportEntry(kind, string(text), ReportEntryVisibilityFailureOrVerbose)
	}
}
