package gitstore

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"math"
	"net/http"
	"os"
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
	"github.com/clew-dev/clew/internal/daemonapi"
	"github.com/clew-dev/clew/internal/gitstoreapi"
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

// originOfFix is the origin of the Task of taskPods.
const originOfFix = "https://git.example.com/fix.git"

// taskPods returns the Authenticator of a cluster with the Task fix, whose attempt 2 has the pod
// fix-2, and with pods that claim to be of the given attempts of it.
func taskPods(t *testing.T, pods map[string]int64) PodAuthenticator {
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
		Spec:       v1alpha1.TaskSpec{Repository: &v1alpha1.Repository{URL: originOfFix}},
		Status:     v1alpha1.TaskStatus{Attempts: []v1alpha1.Attempt{{Number: 2, PodName: "fix-2"}}},
	}
	tasks := dynamicfake.NewSimpleDynamicClient(scheme, task)
	verifier := podidentity.New(client, lasting{}, podidentity.Options{Tasks: podidentity.NewLiveTasks(tasks)})
	return PodAuthenticator{Names: lasting{}, Verifier: verifier, Tasks: NewLiveTasks(tasks)}
}

func TestAPodThatClewDidNotCreateMayNotPush(t *testing.T) {
	authenticator := taskPods(t, map[string]int64{"fix-2": 2, "forged": 2, "fix-3": 3, "huge": math.MaxInt64})
	own := daemonapi.RepositoryKey(originOfFix)
	caller, err := authenticator.Authenticate(t.Context(), tokenFor("fix-2"), "team", own)
	if err != nil {
		t.Fatalf("the task's own pod was refused: %v", err)
	}
	want := Caller{Name: "team/fix-2", NamespaceUID: "uid-of-team", Task: &Task{Namespace: "team", NamespaceUID: "uid-of-team", Name: "fix", UID: "uid-fix", Attempt: 2}}
	if diff := cmp.Diff(want, caller); diff != "" {
		t.Errorf("caller of the task's own pod (-want +got):\n%s", diff)
	}
	for _, name := range []string{"forged", "fix-3", "huge"} {
		if caller, err := authenticator.Authenticate(t.Context(), tokenFor(name), "team", own); !errors.Is(err, podidentity.ErrForbidden) {
			t.Errorf("the pod %s: got %+v, %v; want ErrForbidden", name, caller, err)
		}
	}
	if _, err := authenticator.Authenticate(t.Context(), tokenFor("deleted"), "team", own); !errors.Is(err, podidentity.ErrPodGone) {
		t.Errorf("a deleted pod: got %v, want ErrPodGone", err)
	}
}

// TestAPodReachesNoRepositoryButThatOfItsTask: whoever could push to another one of the namespace
// could build on the commits that its tasks are based on, and so read an origin to which it has no
// credentials; and could make any number of repositories.
func TestAPodReachesNoRepositoryButThatOfItsTask(t *testing.T) {
	own, secret := daemonapi.RepositoryKey(originOfFix), daemonapi.RepositoryKey("https://git.example.com/secret.git")
	trusting := newTestServer(t, Limits{})
	neighbour := newClient(t, trusting.url("team", secret), trusting.ca, taskToken("neighbour", 1))
	base := neighbour.commit("a", "words of an origin to which the task fix has no credentials")
	neighbour.commitAs(checkpointCommitter, "b", "work")
	neighbour.push("HEAD:" + codeRef("neighbour", 1))

	server := serveNamespace(t, trusting.store, Limits{}, taskPods(t, map[string]int64{"fix-2": 2}))
	pod := newClient(t, server.url("team", own), server.ca, tokenFor("fix-2"))
	pod.commit("a", "its own work")
	pod.push("HEAD:" + codeRef("fix", 1))
	pod.git("fetch", "--quiet", pod.url, codeRef("fix", 1))

	for _, name := range []string{secret, "r-made-up"} {
		thief := newClient(t, server.url("team", name), server.ca, tokenFor("fix-2"))
		thief.commit("a", "a")
		thief.refusedPush(gitstoreapi.Forbidden, errOtherRepository.Error(), "HEAD:"+codeRef("fix", 2))
		if _, stderr, err := thief.try("fetch", "--quiet", thief.url, base); err == nil || !strings.Contains(stderr, errOtherRepository.Error()) {
			t.Errorf("a fetch from the repository %s: %v, %s", name, err, stderr)
		}
		path := "/team/" + name + ".git/"
		if code, body := server.ask(http.MethodGet, path+gitstoreapi.LackingPath, tokenFor("fix-2")); code != http.StatusForbidden {
			t.Errorf("who asks for the damaged objects of the repository %s gets code %d, %s", name, code, body)
		}
	}
	if _, err := os.Stat(server.bare("r-made-up")); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("a repository was made for whoever asked for it: %v", err)
	}
}
