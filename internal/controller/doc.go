// Package controller contains the controllers of Clew's four kinds, one package
// each, and their common tests against a real API server.
package controller
