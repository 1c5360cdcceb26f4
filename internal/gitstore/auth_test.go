package gitstore

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	dynamicfake "k8s.io/client-go/dynamic/fake"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"
	"k8s.io/utils/ptr"

	"github.com/clew-dev/clew/api/v1alpha1"
	"github.com/clew-dev/clew/internal/namespaceid"
	"github.com/clew-dev/clew/internal/podidentity"
)

// tokenFor returns a token for a pod. The fake cluster publishes no keys, so any
// signature is accepted.
func tokenFor(pod string) string {
	header := base64.RawURLEncoding.EncodeToString([]byte(`{"alg":"ES256","kid":"1"}`))
	payload := base64.RawURLEncoding.EncodeToString(fmt.Appendf(nil,
		`{"jti":%q,"aud":["clew.dev"],"exp":%d,"kubernetes.io":{"namespace":"team"}}`, pod, time.Now().Add(time.Hour).Unix()))
	return header + "." + payload + "." + base64.RawURLEncoding.EncodeToString(make([]byte, 64))
}

// podOf returns the pod that a token was issued for.
func podOf(token string) string {
	payload, _ := base64.RawURLEncoding.DecodeString(strings.Split(token, ".")[1])
	var claims struct {
		ID string `json:"jti"`
	}
	_ = json.Unmarshal(payload, &claims)
	return claims.ID
}

// lasting are namespaces of which none is made anew.
type lasting struct{}

func (lasting) Get(_ context.Context, name string) (namespaceid.Namespace, error) {
	return namespaceid.Namespace{UID: "uid-of-" + name}, nil
}

// taskPods returns a Verifier for a cluster with the Task fix, whose attempt 2 has the pod
// fix-2, and with pods that claim to be of the given attempts of it.
func taskPods(t *testing.T, pods map[string]int64) *podidentity.Verifier {
	t.Helper()
	scheme := runtime.NewScheme()
	if err := v1alpha1.AddToScheme(scheme); err != nil {
		t.Fatal(err)
	}
	client := fake.NewClientset()
	for name, attempt := range pods {
		pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{
			Namespace: "team", Name: name, UID: "uid-of-pod",
			Labels: map[string]string{v1alpha1.LabelTask: "fix", v1alpha1.LabelTaskUID: "uid-fix", v1alpha1.LabelAttempt: strconv.FormatInt(attempt, 10)},
			OwnerReferences: []metav1.OwnerReference{{
				APIVersion: "clew.dev/v1alpha1", Kind: "Task", Name: "fix", UID: "uid-fix", Controller: ptr.To(true),
			}},
		}}
		if err := client.Tracker().Add(pod); err != nil {
			t.Fatal(err)
		}
	}
	client.PrependReactor("create", "tokenreviews", func(action clienttesting.Action) (bool, runtime.Object, error) {
		review := action.(clienttesting.CreateAction).GetObject().(*authenticationv1.TokenReview).DeepCopy()
		review.Status = authenticationv1.TokenReviewStatus{
			Authenticated: true, Audiences: []string{"clew.dev"},
			User: authenticationv1.UserInfo{Username: "system:serviceaccount:team:clew-task", Extra: map[string]authenticationv1.ExtraValue{
				"authentication.kubernetes.io/pod-name": {podOf(review.Spec.Token)}, "authentication.kubernetes.io/pod-uid": {"uid-of-pod"},
			}},
		}
		return true, review, nil
	})
	task := &v1alpha1.Task{
		TypeMeta:   metav1.TypeMeta{APIVersion: "clew.dev/v1alpha1", Kind: "Task"},
		ObjectMeta: metav1.ObjectMeta{Namespace: "team", Name: "fix", UID: "uid-fix"},
		Status:     v1alpha1.TaskStatus{Attempts: []v1alpha1.Attempt{{Number: 2, PodName: "fix-2"}}},
	}
	return podidentity.New(client, lasting{}, podidentity.Options{Tasks: podidentity.NewLiveTasks(dynamicfake.NewSimpleDynamicClient(scheme, task))})
}

func TestAPodThatClewDidNotCreateMayNotPush(t *testing.T) {
	authenticator := PodAuthenticator{Names: lasting{}, Verifier: taskPods(t, map[string]int64{"fix-2": 2, "forged": 2, "fix-3": 3, "huge": math.MaxInt64})}
	caller, err := authenticator.Authenticate(t.Context(), tokenFor("fix-2"), "team")
	if err != nil {
		t.Fatalf("the task's own pod was refused: %v", err)
	}
	want := Caller{Name: "team/fix-2", NamespaceUID: "uid-of-team", Task: &Task{Namespace: "team", NamespaceUID: "uid-of-team", Name: "fix", UID: "uid-fix", Attempt: 2}}
	if diff := cmp.Diff(want, caller); diff != "" {
		t.Errorf("caller of the task's own pod (-want +got):\n%s", diff)
	}
	for _, name := range []string{"forged", "fix-3", "huge"} {
		if caller, err := authenticator.Authenticate(t.Context(), tokenFor(name), "team"); !errors.Is(err, podidentity.ErrForbidden) {
			t.Errorf("the pod %s: got %+v, %v; want ErrForbidden", name, caller, err)
		}
	}
	if _, err := authenticator.Authenticate(t.Context(), tokenFor("deleted"), "team"); !errors.Is(err, podidentity.ErrPodGone) {
		t.Errorf("a deleted pod: got %v, want ErrPodGone", err)
	}
}
