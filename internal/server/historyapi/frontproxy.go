package historyapi

import (
	"context"
	"fmt"
	"net/http"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apiserver/pkg/authentication/authenticator"
	"k8s.io/apiserver/pkg/authentication/request/headerrequest"
	"k8s.io/apiserver/pkg/server/dynamiccertificates"
	"k8s.io/client-go/kubernetes"
)

const (
	authenticationConfigMap = "extension-apiserver-authentication"
	authenticationNamespace = metav1.NamespaceSystem
)

// FrontProxy authenticates requests forwarded by the API server's aggregation layer: they
// carry its client certificate, and the user in headers. It reads the accepted
// certificates and headers from the config map extension-apiserver-authentication, and
// follows its changes. The server's account needs the role
// extension-apiserver-authentication-reader in kube-system.
//
// The TLS server must request client certificates (tls.RequestClientCert).
type FrontProxy struct {
	ca      *dynamiccertificates.ConfigMapCAController
	headers *headerrequest.RequestHeaderAuthRequestController
	request authenticator.Request
}

// NewFrontProxy returns a FrontProxy that authenticates nobody until Run has read the
// config map.
func NewFrontProxy(client kubernetes.Interface) (*FrontProxy, error) {
	ca, err := dynamiccertificates.NewDynamicCAFromConfigMapController(
		"request-header", authenticationNamespace, authenticationConfigMap, "requestheader-client-ca-file", client)
	if err != nil {
		return nil, fmt.Errorf("watch the certificates of the API server's front proxy: %w", err)
	}
	headers := headerrequest.NewRequestHeaderAuthRequestController(authenticationConfigMap, authenticationNamespace, client,
		"requestheader-username-headers", "requestheader-uid-headers", "requestheader-group-headers",
		"requestheader-extra-headers-prefix", "requestheader-allowed-names")
	return &FrontProxy{ca: ca, headers: headers, request: headerrequest.NewDynamicVerifyOptionsSecure(
		ca.VerifyOptions,
		headerrequest.StringSliceProviderFunc(headers.AllowedClientNames),
		headerrequest.StringSliceProviderFunc(headers.UsernameHeaders),
		headerrequest.StringSliceProviderFunc(headers.UIDHeaders),
		headerrequest.StringSliceProviderFunc(headers.GroupHeaders),
		headerrequest.StringSliceProviderFunc(headers.ExtraHeaderPrefixes),
	)}, nil
}

// Run follows the config map until ctx ends.
func (p *FrontProxy) Run(ctx context.Context) {
	go p.headers.Run(ctx, 1)
	p.ca.Run(ctx, 1)
}

// AuthenticateRequest implements authenticator.Request.
func (p *FrontProxy) AuthenticateRequest(r *http.Request) (*authenticator.Response, bool, error) {
	return p.request.AuthenticateRequest(r)
}
