package server

import (
	"testing"

	"github.com/onsi/gomega"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	metadatafake "k8s.io/client-go/metadata/fake"
	clienttesting "k8s.io/client-go/testing"
)

// Code and history are deleted for a Task that is reported as gone: a temporarily missing
// definition of Tasks must not be taken for that.
func TestATaskIsGoneOnlyIfTheAPIServerSaysSoAboutTheTask(t *testing.T) {
	tasks := schema.GroupResource{Group: "clew.dev", Resource: "tasks"}
	for name, tt := range map[string]struct {
		err  error
		gone bool
	}{
		"this very task":             {apierrors.NewNotFound(tasks, "fix"), true},
		"another one":                {apierrors.NewNotFound(tasks, "other"), false},
		"another kind of that name":  {apierrors.NewNotFound(schema.GroupResource{Resource: "pods"}, "fix"), false},
		"the kind is not served":     {apierrors.NewGenericServerResponse(404, "get", tasks, "fix", "404 page not found", 0, true), false},
		"an error without any words": {&apierrors.StatusError{ErrStatus: metav1.Status{Reason: metav1.StatusReasonNotFound, Code: 404}}, false},
	} {
		t.Run(name, func(t *testing.T) {
			g := gomega.NewWithT(t)
			scheme := metadatafake.NewTestScheme()
			g.Expect(metav1.AddMetaToScheme(scheme)).To(gomega.Succeed())
			client := metadatafake.NewSimpleMetadataClient(scheme)
			client.PrependReactor("get", "tasks", func(clienttesting.Action) (bool, runtime.Object, error) { return true, nil, tt.err })
			uid, err := newLiveTasks(client).TaskUID(t.Context(), "team", "fix")
			g.Expect(uid).To(gomega.BeEmpty())
			if tt.gone {
				g.Expect(err).NotTo(gomega.HaveOccurred())
			} else {
				g.Expect(err).To(gomega.HaveOccurred())
			}
		})
	}
}
